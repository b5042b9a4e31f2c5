"""Who should own an expert, from measured constants of a machine's tiers (paper section 8)."""
