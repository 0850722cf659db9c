// Transposed copies of a triangle of a square matrix in Fortran order. Tiles go through shared
// memory, so that both reading and writing are contiguous. The host defines SOURCE and TARGET, the
// types of numbers, the side TILE of a tile, and LINES, of which TILE is a multiple, that are copied
// at a time. Matrices may have the same memory.

// Write the lower triangle of source (side, side) to the strict upper one of target. With `panel`,
// blocks of this side on the diagonal are written as a whole.
extern "C" __global__ void mirror(const SOURCE* source, TARGET* target, long side,
                                  long source_pitch, long target_pitch, long panel) {
    __shared__ SOURCE tile[TILE][TILE + 1];
    long first_row = blockIdx.x * (long)TILE, first_column = blockIdx.y * (long)TILE;
    if (first_row < first_column) return;
    for (int line = threadIdx.y; line < TILE; line += LINES) {
        long row = first_row + threadIdx.x, column = first_column + line;
        if (row >= side || row < column) continue;
        SOURCE value = source[row + column * source_pitch];
        tile[line][threadIdx.x] = value;
        if (panel && row / panel == column / panel) target[row + column * target_pitch] = value;
    }
    __syncthreads();
    for (int line = threadIdx.y; line < TILE; line += LINES) {
        long row = first_row + line, column = first_column + threadIdx.x;
        if (row < side && row > column) target[column + row * target_pitch] = tile[threadIdx.x][line];
    }
}

// Write the strict upper triangle of source·root·rootᵀ (side, side) to the lower one of target, and
// the diagonal (side,).
extern "C" __global__ void scale(const SOURCE* source, TARGET* target, const TARGET* root,
                                 const TARGET* diagonal, long side, long source_pitch,
                                 long target_pitch) {
    __shared__ SOURCE tile[TILE][TILE + 1];
    long first_row = blockIdx.x * (long)TILE, first_column = blockIdx.y * (long)TILE;
    if (first_row < first_column) return;
    for (int line = threadIdx.y; line < TILE; line += LINES) {
        long row = first_row + line, column = first_column + threadIdx.x;
        if (row < side && row > column) tile[line][threadIdx.x] = source[column + row * source_pitch];
    }
    __syncthreads();
    for (int line = threadIdx.y; line < TILE; line += LINES) {
        long row = first_row + threadIdx.x, column = first_column + line;
        if (row >= side || row < column) continue;
        target[row + column * target_pitch] =
            row == column ? diagonal[row]
                          : TARGET(tile[threadIdx.x][line]) * root[row] * root[column];
    }
}
