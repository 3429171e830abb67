"""`python -m sarlite.info`; the command itself is `sarlite.cli.info_command`."""

from sarlite.cli.info_command import main

if __name__ == "__main__":
    main()
