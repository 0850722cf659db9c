"""Feature extractors: every module here defines one and is found by its presence."""
