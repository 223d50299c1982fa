"""Which hardware to choose, by runs of several machines; and which machine of its type is slow. Pure."""
