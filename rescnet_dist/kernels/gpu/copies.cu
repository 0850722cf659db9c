// The pixels of augmented copies of images on a GPU. The kernels of `cpu/resampling.py` have the same
// operations in the same order, so that both round alike; change both together. The host defines
// PIXEL, float or double; ZERO and REFLECT, indices of PADDINGS; LUMA_RED, LUMA_GREEN, LUMA_BLUE.

// Products and sums that are rounded one by one: the compiler fuses none of them.
__device__ __forceinline__ float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }

// Return the rounded a·x + b·y + 0, by which −0 becomes 0.
__device__ __forceinline__ PIXEL mix(PIXEL a, PIXEL x, PIXEL b, PIXEL y) {
    return add(add(multiply(a, x), multiply(b, y)), (PIXEL)0);
}

// The two pixels of an axis that a coordinate is between, and their weights.
struct Tap {
    int first, second;
    PIXEL before, after;
};

// Locate a coordinate between `side` pixels. Weights are 0 beyond a border of zeros.
__device__ __forceinline__ Tap locate(double coordinate, int side, int padding) {
    const double last = side - 1;
    double inside;
    if (padding == REFLECT && last > 0) {
        inside = fabs(coordinate);
        if (inside > last) {
            inside = fmod(inside, 2 * last);
            inside = inside <= last ? inside : add(2 * last, -inside);
        }
    } else {
        inside = coordinate < 0 ? 0 : coordinate > last ? last : coordinate;
        if (padding == ZERO && fabs(add(coordinate, -inside)) > 0.5)
            return {0, min(1, side - 1), 0, 0};
    }
    const int first = (int)inside;
    const double distance = add(inside, -(double)first);
    return {first, min(first + 1, side - 1), (PIXEL)add(1.0, -distance), (PIXEL)distance};
}

// Write images (n, H, W, d), interpolated at the coordinates of affine maps (n, 6), to copies. A
// thread computes a pixel; there are `pixels` in all.
extern "C" __global__ void resample(const PIXEL* __restrict__ images,
                                    const double* __restrict__ affine, PIXEL* __restrict__ copies,
                                    long long pixels, int height, int width, int channels,
                                    int rotates, int padding) {
    const long long pixel = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (pixel >= pixels) return;
    const int x = pixel % width, y = pixel / width % height;
    const long long number = pixel / ((long long)height * width);
    const double* map = affine + 6 * number;
    const double down = multiply(map[2], y - 0.5 * (height - 1));
    const double right = multiply(map[3], x - 0.5 * (width - 1));
    double row = add(map[0], down), column = add(map[1], right);
    if (rotates) {
        const double cosine = map[4], sine = map[5];
        row = add(add(map[0], multiply(cosine, down)), -multiply(sine, right));
        column = add(add(map[1], multiply(sine, down)), multiply(cosine, right));
    }
    const Tap vertical = locate(row, height, padding), horizontal = locate(column, width, padding);
    const PIXEL* image = images + number * height * width * channels;
    const PIXEL* one = image + (long long)vertical.first * width * channels;
    const PIXEL* other = image + (long long)vertical.second * width * channels;
    const int left = horizontal.first * channels, next = horizontal.second * channels;
    for (int c = 0; c < channels; c++) {
        const PIXEL start =
            mix(one[left + c], vertical.before, other[left + c], vertical.after);
        const PIXEL stop = mix(one[next + c], vertical.before, other[next + c], vertical.after);
        copies[pixel * channels + c] = mix(start, horizontal.before, stop, horizontal.after);
    }
}

// Multiply copies, of `size` numbers each, by their brightness (n,); a thread changes a number, of
// `numbers` in all.
extern "C" __global__ void brighten(PIXEL* __restrict__ copies,
                                    const PIXEL* __restrict__ brightness, long long numbers,
                                    long long size) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < numbers) copies[at] = multiply(copies[at], brightness[at / size]);
}

// Compute the means (n,) of copies (n, H, length), one block of threads for each. Columns are summed
// to sums (n, length), then their sums, both in order.
extern "C" __global__ void average(const PIXEL* __restrict__ copies, double* sums,
                                   PIXEL* __restrict__ means, int height, int length) {
    const PIXEL* copy = copies + (long long)blockIdx.x * height * length;
    double* own = sums + (long long)blockIdx.x * length;
    for (int i = threadIdx.x; i < length; i += blockDim.x) {
        double sum = 0;
        for (int y = 0; y < height; y++) sum = add(sum, (double)copy[(long long)y * length + i]);
        own[i] = sum;
    }
    __syncthreads();
    if (threadIdx.x) return;
    double total = 0;
    for (int i = 0; i < length; i++) total = add(total, own[i]);
    means[blockIdx.x] = (PIXEL)__ddiv_rn(total, (double)((long long)height * length));
}

// Return a value at a distance from another that is multiplied by a factor.
__device__ __forceinline__ PIXEL scale_distance(PIXEL value, PIXEL center, PIXEL factor) {
    return add(center, multiply(add(value, -center), factor));
}

// Change contrast and saturation of copies (n, H, W, d), cut squares out, add noise, round and clip.
// The parameters of changes that are not made are null. A thread changes a pixel.
extern "C" __global__ void adjust(PIXEL* __restrict__ copies, const PIXEL* __restrict__ contrast,
                                  const PIXEL* __restrict__ means,
                                  const PIXEL* __restrict__ saturation,
                                  const long long* __restrict__ corners,
                                  const float* __restrict__ noise, long long pixels, int height,
                                  int width, int channels, int cutout, int clips, PIXEL low,
                                  PIXEL high) {
    const long long pixel = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (pixel >= pixels) return;
    const int x = pixel % width, y = pixel / width % height;
    const long long number = pixel / ((long long)height * width);
    PIXEL* values = copies + pixel * channels;
    if (contrast)
        for (int c = 0; c < channels; c++)
            values[c] = scale_distance(values[c], means[number], contrast[number]);
    if (saturation) {
        const PIXEL red = multiply(values[0], (PIXEL)LUMA_RED);
        const PIXEL green = multiply(values[1], (PIXEL)LUMA_GREEN);
        const PIXEL gray = add(add(red, green), multiply(values[2], (PIXEL)LUMA_BLUE));
        for (int c = 0; c < channels; c++)
            values[c] = scale_distance(values[c], gray, saturation[number]);
    }
    if (corners) {
        const long long down = y - corners[2 * number], right = x - corners[2 * number + 1];
        if (down >= 0 && down < cutout && right >= 0 && right < cutout)
            for (int c = 0; c < channels; c++) values[c] = 0;
    }
    for (int c = 0; c < channels; c++) {
        PIXEL value = values[c];
        if (noise) value = add(value, (PIXEL)noise[pixel * channels + c]);
        if (clips) {
            value = rint(value);
            value = value < low ? low : value > high ? high : value;
        }
        values[c] = value;
    }
}
