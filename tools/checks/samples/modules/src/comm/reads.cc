bool Use(const Settings& settings) { return settings.asked_for && getenv("HOME") != nullptr; }
