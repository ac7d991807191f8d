"""Data on its way to a rank: data sets, the order of an epoch, augmentation, batches."""
