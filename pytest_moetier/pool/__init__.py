"""Where each expert's bytes live: manifests, synthetic stamped pools, and opening one for a run (paper section 4)."""
