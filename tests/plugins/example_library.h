#pragma once

// For tests: the example plugins, and what they tell of themselves.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace tutti {

// Returns the file of an example: kind "tuner", version 5.
std::string ExampleFile(const char* kind, int version);

// Calls a function without arguments that a library exports, which must be loaded.
template <class Value>
Value AskExample(const std::string& file, const char* function) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(library, nullptr) << file;
  if (library == nullptr) return {};
  const auto call = reinterpret_cast<Value (*)()>(dlsym(library, function));
  const Value value = call();
  dlclose(library);
  return value;
}

// A variable that is set while the object lives.
class WithVariable {
 public:
  WithVariable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~WithVariable() { unsetenv(name_); }
  WithVariable(const WithVariable&) = delete;
  WithVariable& operator=(const WithVariable&) = delete;

 private:
  const char* const name_;
};

}  // namespace tutti
