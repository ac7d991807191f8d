"""Studies: series of measurements as a whole. So far ``audit``, which checks published numbers against themselves."""
