// Products of patches from sums of products of pixels: of each pair of offsets in a patch, the sum over
// the rectangle of places that the first of them sweeps over.

// total (size, size, used, size, size, used) from sums (height − down, segments + 1, length, channels,
// neighbors·length, channels): pixels of a row by segments of this length, each with those `down`
// rows below it, from `first` segments to the right on. A block is for one pair of offsets and one
// channel.
extern "C" __global__ void sweep(const float* __restrict__ sums, double* __restrict__ total,
                                 int size, int height, int width, int channels, int used,
                                 int length, int segments, int neighbors, int first, int down) {
    int right_column = blockIdx.x % size, left_column = blockIdx.x / size % size;
    int top = blockIdx.x / (size * size), channel = blockIdx.y;
    int right = right_column - left_column;
    if (down == 0 && right < 0) return;  // the same pairs the other way round
    long beside = (long)neighbors * length * channels, pixel = channels * beside;
    int rows = height - size + 1, columns = width - size + 1;
    int least = down == 0 && right == 0 ? channel : 0;  // of a pixel with itself, a half is all
    for (int other = least + threadIdx.x; other < used; other += blockDim.x) {
        double sum = 0.0;
        for (int y = top; y < top + rows; y++) {
            const float* row = sums + (long)y * (segments + 1) * length * pixel + channel * beside;
#pragma unroll 4
            for (int x = left_column; x < left_column + columns; x++) {
                int place = x % length + right - first * length;
                sum += row[x * pixel + (long)place * channels + other];
            }
        }
        long one = ((long)top * size + left_column) * used + channel;
        long two = ((long)(top + down) * size + right_column) * used + other;
        long side = (long)size * size * used;
        total[one * side + two] = sum;
        total[two * side + one] = sum;
    }
}
