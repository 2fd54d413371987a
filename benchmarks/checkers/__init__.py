"""Takes the answer out of a reply and decides whether it is right, one file per kind of answer."""
