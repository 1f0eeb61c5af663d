#include "testing/fake.h"
