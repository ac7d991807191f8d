"""JPEG as bytes: headers, restart markers, and crops that decode only what they need."""
