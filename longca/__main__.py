"""`python -m longca` is the command `longca`."""

from longca.cli.main import main

if __name__ == "__main__":
    main()
