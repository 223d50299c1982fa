"""The distribution and the command are called accelbench; the package, benchbench."""

raise ImportError("accelbench is imported as benchbench: write `import benchbench`")
