bool Use() { return getenv("HOME") != nullptr; }
