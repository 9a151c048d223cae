// The equations of the cell: gated/<CELL>.cuh. Those of a compiled cell stand before the kernel's own text.
#pragma once
#include "gated/setting.cuh"

// clang-format off: spaces around the slash would be part of the name
#define CELL_FILE_OF(cell) #cell
#define CELL_FILE(cell) CELL_FILE_OF(gated/cell.cuh)
// clang-format on
#ifdef CELL
#include CELL_FILE(CELL)
#endif
