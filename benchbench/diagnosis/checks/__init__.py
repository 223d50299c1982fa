"""What spoils measurements, looked for one by one: a file per part of the machine."""
