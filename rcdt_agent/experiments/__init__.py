"""What is done with agents: run folders, reports, benchmarks, searches for settings."""
