"""From what a program is seen to do to phases, steps and epochs."""
