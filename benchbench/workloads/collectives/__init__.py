"""What passes between devices: a file each."""
