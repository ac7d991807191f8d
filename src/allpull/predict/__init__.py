"""What the next cluster size will do, with an interval, or an honest refusal."""
