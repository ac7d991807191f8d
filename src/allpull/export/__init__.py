"""The numbers of a run in the formats of other tools: tables in files, curves in TensorBoard and MLflow."""
