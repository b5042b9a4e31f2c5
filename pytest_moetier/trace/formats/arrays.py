"""Binary formats: numpy arrays and dumps of pairs and records."""
