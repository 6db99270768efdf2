"""`python -m rcdt_agent`: the `rcdt` command line."""

from rcdt_agent.cli import main

if __name__ == "__main__":
    main()
