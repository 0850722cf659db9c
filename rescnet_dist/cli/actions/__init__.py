"""What the commands of `rescnet` do, imported when they are called."""
