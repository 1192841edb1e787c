"""Programs that run before, after or beside a training; nothing below imports them."""
