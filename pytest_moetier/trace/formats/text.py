"""Text formats: CSV, log lines, engine text."""
