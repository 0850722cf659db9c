// Square roots of the correlation matrices of blocks on a GPU. With SIDE, one kernel computes a root
// in half precision, with matrices of SIDE rows in shared memory; else, the host multiplies matrices
// between the kernels. The host defines, for one network: FILTERS, HEIGHT, WIDTH (pixels), BLOCK,
// STRIDE, COLUMNS and BLOCKS (of an image), PAIRS (of channels), CELLS (of the pyramid), POWER,
// USE_MAX, USE_MEAN, HALF, SIDE (or 0), and the tables FIRST_MEMBER and MEMBERS: the blocks of cell c
// are members[first_member[c]] … members[first_member[c + 1] − 1].

#include <cuda_fp16.h>

#define AREA (BLOCK * BLOCK)
#define MATRIX (FILTERS * FILTERS)
#define POOLS (USE_MAX + USE_MEAN)
#define MINUS_INFINITY __int_as_float(0xff800000)
// Fraction of the mean square, below which a channel counts as constant in its block
#define MIN_VARIANCE_FRACTION 1e-8f
#if HALF
typedef half number;
#else
typedef float number;
#endif

__device__ const int first_member[CELLS + 1] = FIRST_MEMBER;
__device__ const int members[] = MEMBERS;

// ReLU that propagates NaN.
__device__ __forceinline__ float relu(float x) { return x < 0 ? 0.0f : x; }

#if SIDE

#define PITCH (SIDE + 8)  // numbers from row to row: 8 rows of a tile lie in different banks
#define DEPTH ((AREA + 15) / 16 * 16)
#define WARP_ROWS (SIDE / 4)  // of a product that a warp computes, one of 4 × 2
#define WARP_COLUMNS (SIDE / 2)
#define THREADS 256
#define SHARES (THREADS / SIDE)  // threads of a channel

// The part of a product (SIDE, SIDE) that a thread holds, in tiles of 16 × 8 numbers.
typedef float Sums[WARP_ROWS / 16][WARP_COLUMNS / 8][4];

// Load four tiles of 8 × 8 numbers; each thread names one row of 8 numbers.
__device__ __forceinline__ void load_tiles(unsigned (&tiles)[4], const half* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
}

// Load four tiles, each transposed.
__device__ __forceinline__ void load_transposed(unsigned (&tiles)[4], const half* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
}

// Add the product of tiles (16, 16) and (16, 8).
__device__ __forceinline__ void add_product(float (&sum)[4], const unsigned (&left)[4],
                                            unsigned upper, unsigned lower) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(upper), "r"(lower));
}

// Compute left·right of matrices (SIDE, depth) and (depth, SIDE) in shared memory, in rows PITCH
// apart. With TRANSPOSE_LEFT, the left one is (depth, SIDE).
template <bool TRANSPOSE_LEFT>
__device__ __forceinline__ void multiply(const half* left, const half* right, int depth,
                                         Sums& sums) {
    const int warp = threadIdx.x / 32, row = threadIdx.x % 8, tile = threadIdx.x % 32 / 8;
    const int top = warp / 2 * WARP_ROWS, first = warp % 2 * WARP_COLUMNS;
    const int across = tile % 2 * 8, along = tile / 2 * 8;
#pragma unroll
    for (int r = 0; r < WARP_ROWS / 16; r++)
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS / 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[r][c][e] = 0;
    for (int k = 0; k < depth; k += 16) {
        unsigned a[WARP_ROWS / 16][4], b[WARP_COLUMNS / 16][4];
#pragma unroll
        for (int r = 0; r < WARP_ROWS / 16; r++)
            if (TRANSPOSE_LEFT)
                load_transposed(a[r], left + (k + row + along) * PITCH + top + 16 * r + across);
            else
                load_tiles(a[r], left + (top + 16 * r + row + across) * PITCH + k + along);
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS / 16; c++)
            load_transposed(b[c], right + (k + row + across) * PITCH + first + 16 * c + along);
#pragma unroll
        for (int r = 0; r < WARP_ROWS / 16; r++)
#pragma unroll
            for (int c = 0; c < WARP_COLUMNS / 8; c++)
                add_product(sums[r][c], a[r], b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]);
    }
}

// Call visit(row, column, first, second) for all pairs of neighbors of a product in this thread.
template <class Visit>
__device__ __forceinline__ void for_pairs(const Sums& sums, Visit visit) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int top = warp / 2 * WARP_ROWS + lane / 4;
    const int first = warp % 2 * WARP_COLUMNS + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < WARP_ROWS / 16; r++)
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS / 8; c++) {
            const float(&sum)[4] = sums[r][c];
            visit(top + 16 * r, first + 8 * c, sum[0], sum[1]);
            visit(top + 16 * r + 8, first + 8 * c, sum[2], sum[3]);
        }
}

// Write value(x, whether x is on the diagonal), x each number of a product in half precision.
template <class Value>
__device__ __forceinline__ void store(half* into, const Sums& sums, Value value) {
    for_pairs(sums, [&](int row, int column, float x, float y) {
        const half2 rounded = __floats2half2_rn(x, y);
        *(half2*)(into + row * PITCH + column) =
            __floats2half2_rn(value(__low2float(rounded), row == column),
                              value(__high2float(rounded), row == column + 1));
    });
}

// Compute values (DEPTH, SIDE), the z-scores of ReLU(pixels) of a block divided by BLOCK, of pixels
// (HEIGHT, WIDTH, FILTERS) from the block's first one on. Rows and channels that the block does not
// have are 0. SHARES threads sum each channel relative to its first pixel, and read it twice.
__device__ __forceinline__ void standardize(const float* __restrict__ pixels, half* values) {
    __shared__ float sums[THREADS], squares[THREADS];
    const int a = threadIdx.x % SIDE, share = threadIdx.x / SIDE;
    const bool inside = a < FILTERS;
    const float start = inside ? relu(pixels[a]) : 0.0f;
    float sum = 0, square = 0;
    if (inside)
        for (int y = share; y < BLOCK; y += SHARES)
#pragma unroll
            for (int x = 0; x < BLOCK; x++) {
                const float v = relu(pixels[(y * WIDTH + x) * FILTERS + a]) - start;
                sum += v;
                square += v * v;
            }
    sums[threadIdx.x] = sum;
    squares[threadIdx.x] = square;
    __syncthreads();
    sum = square = 0;
    for (int s = 0; s < SHARES; s++) {
        sum += sums[s * SIDE + a];
        square += squares[s * SIDE + a];
    }
    const float shift = sum / AREA, mean = start + shift;
    const float variance = square / AREA - shift * shift;
    const bool constant = variance <= MIN_VARIANCE_FRACTION * (variance + mean * mean);
    const float scale = constant ? 0.0f : 1.0f / (BLOCK * sqrtf(variance));
    for (int y = share; y < BLOCK; y += SHARES)
#pragma unroll
        for (int x = 0; x < BLOCK; x++) {
            const float v = inside ? relu(pixels[(y * WIDTH + x) * FILTERS + a]) - mean : 0.0f;
            values[(y * BLOCK + x) * PITCH + a] = __float2half(v * scale);
        }
    for (int k = AREA + share; k < DEPTH; k += SHARES) values[k * PITCH + a] = __float2half(0.0f);
}

// Compute roots (n, BLOCKS, FILTERS, FILTERS), upper triangles only, and traces (n, BLOCKS) of the
// correlation matrices of maps (n, HEIGHT, WIDTH, FILTERS): the roots are those of the matrices
// plus ridge·I divided by their traces. A block of threads computes one root in dynamic shared
// memory, where it has room for the values of a block and for three matrices.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    find_roots(const float* __restrict__ maps, half* __restrict__ roots,
               float* __restrict__ traces, int steps, float ridge) {
    extern __shared__ __align__(16) half memory[];
    half *root = memory, *inverse = memory + SIDE * PITCH, *factor = inverse + SIDE * PITCH;
    __shared__ float diagonal[SIDE], trace;
    const long image = blockIdx.x / BLOCKS;
    const int place = blockIdx.x % BLOCKS;
    const int top = place / COLUMNS * STRIDE, left = place % COLUMNS * STRIDE;
    standardize(maps + ((image * HEIGHT + top) * WIDTH + left) * FILTERS, memory);
    __syncthreads();
    Sums sums;
    multiply<true>(memory, memory, DEPTH, sums);
    for_pairs(sums, [&](int row, int column, float x, float y) {
        if (row == column) diagonal[row] = __half2float(__float2half(x)) + ridge;
        if (row == column + 1) diagonal[row] = __half2float(__float2half(y)) + ridge;
    });
    __syncthreads();
    if (threadIdx.x < 32) {
        float sum = 0;
        for (int a = threadIdx.x; a < FILTERS; a += 32) sum += diagonal[a];
        for (int distance = 16; distance; distance /= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, distance);
        if (threadIdx.x == 0) traces[blockIdx.x] = trace = sum;
    }
    __syncthreads();
    const auto scaled = [&](float x, bool same) { return (x + (same ? ridge : 0.0f)) / trace; };
    const auto complement = [](float x, bool same) { return (same ? 1.5f : 0.0f) - 0.5f * x; };
    const auto itself = [](float x, bool) { return x; };
    store(root, sums, scaled);
    store(inverse, sums, [&](float x, bool same) { return complement(scaled(x, same), same); });
    __syncthreads();
    multiply<false>(root, inverse, SIDE, sums);
    __syncthreads();
    store(root, sums, itself);
    for (int step = 1; step < steps; step++) {
        __syncthreads();
        multiply<false>(inverse, root, SIDE, sums);
        store(factor, sums, complement);
        __syncthreads();
        multiply<false>(root, factor, SIDE, sums);
        __syncthreads();
        store(root, sums, itself);
        if (step < steps - 1) {
            multiply<false>(factor, inverse, SIDE, sums);
            __syncthreads();
            store(inverse, sums, itself);
        }
    }
    __syncthreads();
    half* into = roots + (long)blockIdx.x * MATRIX;
#if FILTERS % 8 == 0
    for (int e = threadIdx.x * 8; e < MATRIX; e += THREADS * 8) {
        const int row = e / FILTERS, column = e % FILTERS;
        if (column + 7 >= row) *(uint4*)(into + e) = *(const uint4*)(root + row * PITCH + column);
    }
#else
    for (int e = threadIdx.x; e < MATRIX; e += THREADS)
        into[e] = root[e / FILTERS * PITCH + e % FILTERS];
#endif
}

#else

// Compute values (n, BLOCKS, AREA, FILTERS), the z-scores of ReLU(maps) in each block divided by
// BLOCK, of maps (n, HEIGHT, WIDTH, FILTERS). A block of threads processes a block of an image, each
// thread one channel at a time.
extern "C" __global__ void normalize(const float* __restrict__ maps, number* __restrict__ values) {
    const long image = blockIdx.x / BLOCKS;
    const int place = blockIdx.x % BLOCKS;
    const int top = place / COLUMNS * STRIDE, left = place % COLUMNS * STRIDE;
    const float* pixels = maps + ((image * HEIGHT + top) * WIDTH + left) * FILTERS;
    number* into = values + (long)blockIdx.x * AREA * FILTERS;
    for (int a = threadIdx.x; a < FILTERS; a += blockDim.x) {
        float sum = 0, square = 0;
        for (int y = 0; y < BLOCK; y++)
#pragma unroll
            for (int x = 0; x < BLOCK; x++) sum += relu(pixels[(y * WIDTH + x) * FILTERS + a]);
        const float mean = sum / AREA;
        for (int y = 0; y < BLOCK; y++)
#pragma unroll
            for (int x = 0; x < BLOCK; x++) {
                float v = relu(pixels[(y * WIDTH + x) * FILTERS + a]) - mean;
                square += v * v;
            }
        const float variance = square / AREA;
        const bool constant = variance <= MIN_VARIANCE_FRACTION * (variance + mean * mean);
        const float scale = constant ? 0.0f : 1.0f / (BLOCK * sqrtf(variance));
        for (int y = 0; y < BLOCK; y++)
#pragma unroll
            for (int x = 0; x < BLOCK; x++)
                into[(y * BLOCK + x) * FILTERS + a] =
                    (number)((relu(pixels[(y * WIDTH + x) * FILTERS + a]) - mean) * scale);
    }
}

// Start the iteration: add the ridge to the diagonal of matrices (m, FILTERS, FILTERS), divide them by
// their traces (m), and write the first factors 1.5·I − 0.5·matrix. A warp sums a trace, always in the
// same order; a block of threads processes a matrix.
extern "C" __global__ void start(number* __restrict__ matrices, number* __restrict__ factors,
                                 float* __restrict__ traces, float ridge) {
    number* matrix = matrices + (long)blockIdx.x * MATRIX;
    number* factor = factors + (long)blockIdx.x * MATRIX;
    __shared__ float trace;
    if (threadIdx.x < 32) {
        float sum = 0;
        for (int a = threadIdx.x; a < FILTERS; a += 32)
            sum += (float)matrix[a * (FILTERS + 1)] + ridge;
        for (int distance = 16; distance; distance /= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, distance);
        if (threadIdx.x == 0) traces[blockIdx.x] = trace = sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < MATRIX; e += blockDim.x) {
        const bool diagonal = e / FILTERS == e % FILTERS;
        const float value = ((float)matrix[e] + (diagonal ? ridge : 0.0f)) / trace;
        matrix[e] = (number)value;
        factor[e] = (number)((diagonal ? 1.5f : 0.0f) - 0.5f * value);
    }
}

// Replace products (m, FILTERS, FILTERS) by 1.5·I − 0.5·product. A block of threads processes one.
extern "C" __global__ void complement(number* __restrict__ products) {
    number* product = products + (long)blockIdx.x * MATRIX;
    for (int e = threadIdx.x; e < MATRIX; e += blockDim.x)
        product[e] = (number)((e / FILTERS == e % FILTERS ? 1.5f : 0.0f) - 0.5f * (float)product[e]);
}

#endif

// Pool the upper triangles of roots (n, BLOCKS, FILTERS, FILTERS) times the root of traces (n,
// BLOCKS) into features (n, CELLS, POOLS, PAIRS). upper (PAIRS) are the places of pairs in a matrix.
// A thread pools one pair of an image.
extern "C" __global__ void pool(const number* __restrict__ roots, const float* __restrict__ traces,
                                const int* __restrict__ upper, float* __restrict__ features) {
    const int groups = (PAIRS + blockDim.x - 1) / blockDim.x;
    const long image = blockIdx.x / groups;
    const int pair = blockIdx.x % groups * blockDim.x + threadIdx.x;
    if (pair >= PAIRS) return;
    const number* entries = roots + image * BLOCKS * MATRIX + upper[pair];
    float* into = features + image * CELLS * POOLS * PAIRS + pair;
    for (int cell = 0; cell < CELLS; cell++) {
        const int first = first_member[cell], last = first_member[cell + 1];
        float largest = MINUS_INFINITY, sum = 0;
#pragma unroll 4
        for (int m = first; m < last; m++) {
            const int place = members[m];
            float v = (float)entries[(long)place * MATRIX] * sqrtf(traces[image * BLOCKS + place]);
            if (POWER) v = copysignf(sqrtf(fabsf(v)), v);
            largest = v > largest || v != v ? v : largest;
            sum += v;
        }
        float* pooled = into + (long)cell * POOLS * PAIRS;
        if (USE_MAX) pooled[0] = largest;
        if (USE_MEAN) pooled[USE_MAX * PAIRS] = sum / (last - first);
    }
}
