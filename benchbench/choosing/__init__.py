"""Which hardware to choose, judged by runs of several machines, and which machines are slow. Pure."""
