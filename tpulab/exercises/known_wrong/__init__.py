"""Answers that must not pass. They are imported only in the process that judges them."""
