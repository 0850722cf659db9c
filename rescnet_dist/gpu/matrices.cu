// The convolution of a layer on the matrix units of a GPU: as in convolution.cu, but numbers are
// multiplied in half precision, split into 11 bits and the rest where SPLIT is set, and summed in
// single precision. A block of threads makes all filters of TILE × TILE pixels, each of its warps two
// rows of them; 16 channels and one row of the filters are held at a time. The host defines FIRST,
// SECOND, FILTERS, OF, SIZE, HEIGHT, WIDTH and SPLIT.

#include <cuda_fp16.h>

#define TILE 16
#define DEPTH 16
#define EIGHTS ((FILTERS + 7) / 8)
#define WIDE (8 * EIGHTS)
#define SIDE (TILE + SIZE - 1)
#define BEFORE ((SIZE - 1) / 2)
#define PARTS (SPLIT ? 2 : 1)
#define THREADS (16 * TILE)
#define PITCH (DEPTH + 8)  // so that no two threads want the same bank

// sums (16, 8) += a (16, 16) b (16, 8); which thread holds what is NVIDIA's choice (PTX, mma.m16n8k16)
__device__ __forceinline__ void multiply(float sums[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ unsigned pair(const half* place) { return *(const unsigned*)place; }

// maps (n, H, W, FILTERS of OF) of some channels (count,) of first (n, H, W, FIRST) and second
// (n, H, W, SECOND), counted through both, normalized as (… − low)·scale, with weights
// (PARTS, SIZE, ⌈count / DEPTH⌉, SIZE, WIDE, DEPTH), rows of filters first, and bias (WIDE,).
extern "C" __global__ void __launch_bounds__(THREADS)
convolve(const float* __restrict__ first, const float* __restrict__ second,
         const int* __restrict__ channels, int count, const float* __restrict__ low,
         const float* __restrict__ scale, const half* __restrict__ weights,
         const float* __restrict__ bias, float* __restrict__ maps) {
    __shared__ __align__(16) half inputs[PARTS][SIDE][SIDE][PITCH];
    __shared__ __align__(16) half filters[PARTS][SIZE][WIDE][PITCH];
    const int chunks = (count + DEPTH - 1) / DEPTH;
    const long image = blockIdx.z;
    const int top = blockIdx.y * TILE, left = blockIdx.x * TILE;
    const int thread = threadIdx.x, row = thread / 32 * 2;
    const int across = thread % 32 / 4, along = thread % 4 * 2;
    float sums[2][EIGHTS][4];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int f = 0; f < EIGHTS; f++)
#pragma unroll
            for (int q = 0; q < 4; q++) sums[r][f][q] = 0;
    for (int chunk = 0; chunk < chunks; chunk++) {
        __syncthreads();
        for (int t = thread; t < SIDE * SIDE * DEPTH; t += THREADS) {
            int c = t % DEPTH, x = t / DEPTH % SIDE, y = t / DEPTH / SIDE;
            int from_y = top + y - BEFORE, from_x = left + x - BEFORE, from = chunk * DEPTH + c;
            float value = 0;
            if (from < count && from_y >= 0 && from_y < HEIGHT && from_x >= 0 && from_x < WIDTH) {
                long pixel = (image * HEIGHT + from_y) * WIDTH + from_x;
                int channel = channels[from];
                value = channel < FIRST ? first[pixel * FIRST + channel]
                                        : second[pixel * SECOND + channel - FIRST];
                value = (value - low[from]) * scale[from];
            }
            half kept = __float2half_rn(value);
            inputs[0][y][x][c] = kept;
            if (SPLIT) inputs[PARTS - 1][y][x][c] = __float2half_rn(value - __half2float(kept));
        }
        for (int down = 0; down < SIZE; down++) {
            if (down) __syncthreads();
            const int eights = SIZE * WIDE * DEPTH / 8;  // of a part, moved eight numbers at a time
            for (int t = thread; t < PARTS * eights; t += THREADS) {
                int part = t / eights, at = t % eights * 8;
                const half* from =
                    weights + (((long)part * SIZE + down) * chunks + chunk) * eights * 8 + at;
                half* into = &filters[part][0][0][0] + at / DEPTH * PITCH + at % DEPTH;
                *(uint4*)into = *(const uint4*)from;
            }
            __syncthreads();
#pragma unroll 1
            for (int right = 0; right < SIZE; right++) {
                unsigned a[PARTS][2][4];
#pragma unroll
                for (int p = 0; p < PARTS; p++)
#pragma unroll
                    for (int r = 0; r < 2; r++)
#pragma unroll
                        for (int q = 0; q < 4; q++)
                            a[p][r][q] = pair(&inputs[p][row + r + down][right + across + q % 2 * 8]
                                                     [along + q / 2 * 8]);
#pragma unroll
                for (int f = 0; f < EIGHTS; f++) {
                    const half* place = &filters[0][right][8 * f + across][along];
                    unsigned b[2] = {pair(place), pair(place + 8)};
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        multiply(sums[r][f], a[0][r], b);
                        if (SPLIT) multiply(sums[r][f], a[PARTS - 1][r], b);
                    }
                    if (SPLIT) {
                        place = &filters[PARTS - 1][right][8 * f + across][along];
                        b[0] = pair(place), b[1] = pair(place + 8);
#pragma unroll
                        for (int r = 0; r < 2; r++) multiply(sums[r][f], a[0][r], b);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
            int y = top + row + r, x = left + across + q / 2 * 8;
            if (y >= HEIGHT || x >= WIDTH) continue;
            float* into = maps + ((image * HEIGHT + y) * WIDTH + x) * OF;
#pragma unroll
            for (int f = 0; f < EIGHTS; f++) {
                int filter = 8 * f + along + q % 2;
                if (filter < FILTERS) into[filter] = sums[r][f][q] + bias[filter];
            }
        }
}
