"""What the paper's mechanism does, measured (`divevlm analyze`), and drawn."""
