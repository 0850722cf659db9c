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

// Write a tile, its first row and column being these, turned round to high and low (…, pitch).
// Without low, high is all that there is.
__device__ void put(const float (&tile)[TILE][TILE + 1], number* __restrict__ high,
                    number* __restrict__ low, long row, long column, long pitch) {
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

// high and low (…, pitch) of source (rows, from_pitch), which has so many columns; beyond rows and
// columns they are 0.
extern "C" __global__ void transpose(const float* __restrict__ source, number* __restrict__ high,
                                number* __restrict__ low, long rows, long columns,
                                long from_pitch, long pitch) {
    __shared__ float tile[TILE][TILE + 1];
    long column = blockIdx.x * (long)TILE, row = blockIdx.y * (long)TILE;
    for (int y = threadIdx.y; y < TILE; y += LINES) {
        long from = row + y, at = column + threadIdx.x;
        tile[y][threadIdx.x] = from < rows && at < columns ? source[from * from_pitch + at] : 0.0f;
    }
    __syncthreads();
    put(tile, high, low, row, column, pitch);
}

// The same of images: of each the pixels (height, width), every row of them begun by so many zeros,
// `margin`, and filled up with zeros to `across`; a pixel is (first + second channels − shift)·scale
// of maps (rows, height, width, first) and images (…, second), filled up to `channels`.
extern "C" __global__ void transpose_pixels(const float* __restrict__ maps,
                                       const float* __restrict__ images,
                                       const float* __restrict__ shift,
                                       const float* __restrict__ scale, number* __restrict__ high,
                                       number* __restrict__ low, int rows, int height, int width,
                                       int first, int second, int margin, int across, int channels,
                                       long pitch) {
    __shared__ float tile[TILE][TILE + 1];
    long column = blockIdx.x * (long)TILE, row = blockIdx.y * (long)TILE;
    int at = (int)column + threadIdx.x, pixel = at / channels, channel = at % channels;
    int y = pixel / across, x = pixel % across - margin;
    bool inside = y < height && x >= 0 && x < width && channel < first + second;
    bool of_maps = channel < first;
    const float* source = of_maps ? maps : images;
    long step = (long)height * width * (of_maps ? first : second);
    long place = ((long)y * width + x) * (of_maps ? first : second) + channel - (of_maps ? 0 : first);
    float by = inside ? shift[channel] : 0.0f, times = inside ? scale[channel] : 0.0f;
    for (int line = threadIdx.y; line < TILE; line += LINES) {
        long from = row + line;
        tile[line][threadIdx.x] =
            inside && from < rows ? (source[from * step + place] - by) * times : 0.0f;
    }
    __syncthreads();
    put(tile, high, low, row, column, pitch);
}
