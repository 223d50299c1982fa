"""What a launcher starts: `torchrun … -m benchbench.ranks …` (docs/devices.md)."""

from benchbench.cli.ranks import launched_program

if __name__ == "__main__":
    launched_program()
