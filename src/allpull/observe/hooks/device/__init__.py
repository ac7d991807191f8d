"""Time an accelerator by events on the stream that the program uses."""
