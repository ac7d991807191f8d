"""The report as one HTML file, and its charts as figures."""
