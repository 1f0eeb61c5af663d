#pragma once
inline std::string Name() { return "needs <string>, which is not included"; }
