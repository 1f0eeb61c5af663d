#pragma once

// libmlx5, looked up at run time like libibverbs (transport/net/verbs/library.h). Its interface
// DevX makes objects of a card by the card's own commands (commands.h), and lets the caller choose
// the memory of the objects. Address handles are a part of libibverbs, which libmlx5 loads.
//
// A library is a value of function pointers and is never unloaded.

#include <infiniband/mlx5dv.h>

#include <string>

#include "base/status.h"

namespace tutti {

// An mlx5dv_devx_umem_in, whose last member is missing in headers before rdma-core 44.
struct Mlx5UmemIn {
  void* addr = nullptr;  // in a DMA-BUF, the offset of the memory
  size_t size = 0;
  uint32_t access = 0;
  uint64_t pgsz_bitmap = 0;
  uint64_t comp_mask = 0;
  int dmabuf_fd = -1;
};
inline constexpr uint64_t kMlx5UmemOfDmabuf = 1;  // in comp_mask

// Every function in use: the member's name, the symbol, the result, the parameters.
#define TUTTI_MLX5_CALLS(X)                                                               \
  X(is_supported, "mlx5dv_is_supported", bool, (ibv_device*))                             \
  X(open_device, "mlx5dv_open_device", ibv_context*, (ibv_device*, mlx5dv_context_attr*)) \
  X(init_obj, "mlx5dv_init_obj", int, (mlx5dv_obj*, uint64_t))                            \
  X(alloc_uar, "mlx5dv_devx_alloc_uar", mlx5dv_devx_uar*, (ibv_context*, uint32_t))       \
  X(free_uar, "mlx5dv_devx_free_uar", void, (mlx5dv_devx_uar*))                           \
  X(umem_reg, "mlx5dv_devx_umem_reg_ex", mlx5dv_devx_umem*, (ibv_context*, Mlx5UmemIn*))  \
  X(umem_dereg, "mlx5dv_devx_umem_dereg", int, (mlx5dv_devx_umem*))                       \
  X(query_eqn, "mlx5dv_devx_query_eqn", int, (ibv_context*, uint32_t, uint32_t*))         \
  X(obj_create, "mlx5dv_devx_obj_create", mlx5dv_devx_obj*,                               \
    (ibv_context*, const void*, size_t, void*, size_t))                                   \
  X(obj_modify, "mlx5dv_devx_obj_modify", int,                                            \
    (mlx5dv_devx_obj*, const void*, size_t, void*, size_t))                               \
  X(obj_query, "mlx5dv_devx_obj_query", int,                                              \
    (mlx5dv_devx_obj*, const void*, size_t, void*, size_t))                               \
  X(obj_destroy, "mlx5dv_devx_obj_destroy", int, (mlx5dv_devx_obj*))                      \
  X(create_ah, "ibv_create_ah", ibv_ah*, (ibv_pd*, ibv_ah_attr*))                         \
  X(destroy_ah, "ibv_destroy_ah", int, (ibv_ah*))

struct Mlx5Library {
#define TUTTI_MLX5_MEMBER(name, symbol, result, parameters) result(*name) parameters = nullptr;
  TUTTI_MLX5_CALLS(TUTTI_MLX5_MEMBER)
#undef TUTTI_MLX5_MEMBER
};

// Loads the library of the name or path `file` and looks up all functions. SystemError, with the
// name, for a missing library or function.
Result<Mlx5Library> LoadMlx5Library(const std::string& file);

}  // namespace tutti
