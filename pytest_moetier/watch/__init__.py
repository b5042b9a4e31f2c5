"""The operator's alarm (paper section 5): live counters against thresholds, and what to do once one is crossed."""
