"""The paper's tables and figures as recipes, the runner behind `divevlm eval`, and the analyses."""
