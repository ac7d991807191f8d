"""One max-plus engine over a recorded window, and the questions that are put to it."""
