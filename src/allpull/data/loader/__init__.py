"""The loader: from a data set to one rank's batches."""
