// Matrices turned round, in single precision or split into halves, what 11 bits keep of each number
// and the rest: the matrix units of a GPU are at their best where the numbers that are summed over lie
// side by side. The host defines HALF.

#include <cuda_fp16.h>

#define TILE 32
#define LINES 8
#if HALF
typedef half number;
#else
typedef float number;
#endif

// high and low (…, pitch) of source (rows, from_pitch), which has so many columns; beyond rows and
// columns they are 0. Without low, high is all that there is.
extern "C" __global__ void turn(const float* __restrict__ source, number* __restrict__ high,
                                number* __restrict__ low, long rows, long columns,
                                long from_pitch, long pitch) {
    __shared__ float tile[TILE][TILE + 1];
    long column = blockIdx.x * (long)TILE, row = blockIdx.y * (long)TILE;
    for (int y = threadIdx.y; y < TILE; y += LINES) {
        long from = row + y, at = column + threadIdx.x;
        tile[y][threadIdx.x] = from < rows && at < columns ? source[from * from_pitch + at] : 0.0f;
    }
    __syncthreads();
    for (int y = threadIdx.y; y < TILE; y += LINES) {
        long into = (column + y) * pitch + row + threadIdx.x;
        float value = tile[threadIdx.x][y];
#if HALF
        half kept = __float2half_rn(value);
        high[into] = kept;
        if (low) low[into] = __float2half_rn(value - __half2float(kept));
#else
        high[into] = value;
#endif
    }
}
