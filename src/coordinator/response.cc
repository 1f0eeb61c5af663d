#include "coordinator/response.h"

namespace tutti::coordinator {

int64_t Agreement::bytes() const {
  if (request.kind != OpKind::kAllgather) return request.bytes();
  int64_t rows = 0;
  for (const int64_t dimension : first_dims) rows += dimension;
  return rows * request.row_elements() * static_cast<int64_t>(SizeOf(request.type));
}

}  // namespace tutti::coordinator
