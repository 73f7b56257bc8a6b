"""The paper's tables and figures: what it prints, how to run them, and what comes out beside it."""
