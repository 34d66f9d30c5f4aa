//! Constants and polynomials of the float formats.
//!
//! `polynomials.py` computes the polynomials by Remez's algorithm. The errors in the comments are
//! the largest ones of the function that the polynomial is part of, relative to the value of the
//! function, without rounding.

/// A float format. The constants that only functions of this crate need are hidden.
pub trait Format {
    /// The number of bits of the mantissa, without the leading one.
    const MANTISSA_BITS: i64;
    /// The bias of the exponent.
    const BIAS: i64;
    /// The bits of the square root of 1/2.
    #[doc(hidden)]
    const SQRT_HALF_BITS: i64;
    /// The distance of 1 from the next larger number.
    const EPSILON: f64;
    /// The smallest positive normal number.
    const MIN_POSITIVE: f64;
    /// The largest number.
    const MAX: f64;
    /// The logarithm of a power of two that turns subnormal numbers into normal ones.
    #[doc(hidden)]
    const SUBNORMAL_SCALE: i64;
    /// A range outside of which `x e^x` is zero or infinite.
    #[doc(hidden)]
    const EXP_RANGE: [f64; 2];
    /// The number above which `tanh(x / 2)` is 1.
    #[doc(hidden)]
    const TANH_LIMIT: f64;
    /// The number above which `erfc` is 0.
    #[doc(hidden)]
    const ERFC_LIMIT: f64;
    /// The largest number from which multiples of pi/2 are subtracted with three terms.
    #[doc(hidden)]
    const SIN_LIMIT: f64;
    /// ln 2 in two terms.
    #[doc(hidden)]
    const LN_2: [f64; 2];
    /// pi/2 in three terms.
    #[doc(hidden)]
    const FRAC_PI_2: [f64; 3];
    /// 2/3 in two terms.
    #[doc(hidden)]
    const TWO_THIRDS: [f64; 2];
    /// `(e^x - 1 - x) / x^2` for `|x| <= ln(2) / 2`.
    #[doc(hidden)]
    const EXP: &'static [f64];
    /// `(2 atanh(x) - 2 x) / x^3` in `x^2`, for `|x| <= (sqrt(2) - 1) / (sqrt(2) + 1)`.
    #[doc(hidden)]
    const LOG: &'static [f64];
    /// `(sin(x) - x) / x^3` in `x^2`, for `|x| <= pi/4`.
    #[doc(hidden)]
    const SIN: &'static [f64];
    /// `(cos(x) - 1 + x^2 / 2) / x^4` in `x^2`, for `|x| <= pi/4`.
    #[doc(hidden)]
    const COS: &'static [f64];
    /// `(asin(x) - x) / x^3` in `x^2`, for `|x| <= 1/2`.
    #[doc(hidden)]
    const ASIN: &'static [f64];
    /// `(atan(x) - x) / x^3` in `x^2`, for `|x| <= tan(pi/8)`.
    #[doc(hidden)]
    const ATAN: &'static [f64];
    /// `erf(x) / x - 1` in `x^2`, for `x^2 <= 0.9`.
    #[doc(hidden)]
    const ERF: &'static [f64];
    /// `(1 + 2 x) e^(x^2) erfc(x)` in `(x - 4) / (x + 4)`, for `0 <= x <= ERFC_LIMIT`.
    #[doc(hidden)]
    const ERFC: &'static [f64];
}

impl Format for f32 {
    const MANTISSA_BITS: i64 = 23;
    const BIAS: i64 = 127;
    const SQRT_HALF_BITS: i64 = 0x3f35_04f3;
    const EPSILON: f64 = f32::EPSILON as f64;
    const MIN_POSITIVE: f64 = f32::MIN_POSITIVE as f64;
    const MAX: f64 = f32::MAX as f64;
    const SUBNORMAL_SCALE: i64 = 25;
    const EXP_RANGE: [f64; 2] = [-120.0, 89.0];
    const TANH_LIMIT: f64 = 20.0;
    const ERFC_LIMIT: f64 = 11.0;
    const SIN_LIMIT: f64 = 1e6;
    const LN_2: [f64; 2] = [0.6931471824645996, -1.9046542121259336e-9];
    const FRAC_PI_2: [f64; 3] = [1.5707963705062866, -4.371138828673793e-8, -1.7151245100058819e-15];
    const TWO_THIRDS: [f64; 2] = [0.6666666865348816, -1.9868215517249155e-8];
    // 2^-32.0
    const EXP: &'static [f64] = &[
        0.5000000046411808,
        0.16666666817364975,
        0.04166635466168484,
        0.008333272986761392,
        0.0013941008688903758,
        0.0001991420272861847,
    ];
    // 2^-37.6
    const LOG: &'static [f64] = &[0.666666656451107, 0.4000033527603408, 0.2853730268551951, 0.23582271295210908];
    // 2^-37.6
    const SIN: &'static [f64] =
        &[-0.16666666641618919, 0.008333329384969456, -0.000198393345304584, 2.7183084847852615e-6];
    // 2^-43.2
    const COS: &'static [f64] =
        &[0.04166666662281463, -0.0013888883752162149, 2.4799519656411134e-5, -2.721020705808552e-7];
    // 2^-31.7
    const ASIN: &'static [f64] = &[
        0.16666659853558077,
        0.07500512094117184,
        0.04451547844541575,
        0.0318197593412019,
        0.014394020975295673,
        0.03757787228314465,
    ];
    // 2^-30.5
    const ATAN: &'static [f64] =
        &[-0.3333331542351362, 0.19998484028858124, -0.14243739478671674, 0.1059514469059059, -0.06081166452201379];
    // 2^-36.0
    const ERF: &'static [f64] = &[
        0.12837916707888197,
        -0.37612638671696225,
        0.11283786341344525,
        -0.026865699847130928,
        0.0052219200945304925,
        -0.0008499017707643278,
        0.00011389745877746405,
        -1.0067999646793882e-5,
    ];
    // 2^-30.1
    const ERFC: &'static [f64] = &[
        1.232995119184876,
        -0.1396211337152201,
        0.015379559964180263,
        0.06809789504748202,
        -0.1010361067200165,
        0.09372257975369565,
        -0.06636726144601371,
        0.037199449657620676,
        -0.016007053840192728,
        0.005117669155973867,
        -0.0010698703130275918,
        -0.0006220721815870296,
    ];
}

impl Format for f64 {
    const MANTISSA_BITS: i64 = 52;
    const BIAS: i64 = 1023;
    const SQRT_HALF_BITS: i64 = 0x3fe6_a09e_667f_3bcd;
    const EPSILON: f64 = f64::EPSILON;
    const MIN_POSITIVE: f64 = f64::MIN_POSITIVE;
    const MAX: f64 = f64::MAX;
    const SUBNORMAL_SCALE: i64 = 54;
    const EXP_RANGE: [f64; 2] = [-760.0, 710.0];
    const TANH_LIMIT: f64 = 44.0;
    const ERFC_LIMIT: f64 = 28.0;
    const SIN_LIMIT: f64 = 1e9;
    const LN_2: [f64; 2] = [std::f64::consts::LN_2, 2.3190468138462996e-17];
    const FRAC_PI_2: [f64; 3] = [std::f64::consts::FRAC_PI_2, 6.123233995736766e-17, -1.4973849048591698e-33];
    const TWO_THIRDS: [f64; 2] = [0.6666666666666666, 3.700743415417188e-17];
    // 2^-61.7
    const EXP: &'static [f64] = &[
        0.5,
        0.16666666666666677,
        0.0416666666666667,
        0.008333333333321615,
        0.0013888888888866728,
        0.00019841269886158402,
        2.480158736073158e-5,
        2.7557244181991125e-6,
        2.755724263258723e-7,
        2.510904488834267e-8,
        2.092447773114515e-9,
    ];
    // 2^-66.7
    const LOG: &'static [f64] = &[
        0.6666666666666666,
        0.4000000000000625,
        0.28571428569085905,
        0.22222222646793485,
        0.18181775665812205,
        0.1538709074258447,
        0.1325011850759622,
        0.13251325370240505,
    ];
    // 2^-68.8
    const SIN: &'static [f64] = &[
        -0.16666666666666666,
        0.008333333333333323,
        -0.00019841269841255129,
        2.7557319214222944e-6,
        -2.5052104920229708e-8,
        1.6058367749863122e-10,
        -7.578754533576551e-13,
    ];
    // 2^-75.2
    const COS: &'static [f64] = &[
        0.041666666666666664,
        -0.0013888888888888874,
        2.4801587301571533e-5,
        -2.7557319215391146e-7,
        2.0876754369599577e-9,
        -1.1470293656032082e-11,
        4.738126596357806e-14,
    ];
    // 2^-59.8
    const ASIN: &'static [f64] = &[
        0.16666666666666763,
        0.07499999999970096,
        0.04464285717528865,
        0.030381942675156853,
        0.022372215909278428,
        0.017351595442040135,
        0.013981019191444385,
        0.01139728804829167,
        0.010789347081288337,
        0.003672094867236857,
        0.021790848638403807,
        -0.0211169801934631,
        0.0327023107902627,
    ];
    // 2^-64.2
    const ATAN: &'static [f64] = &[
        -0.33333333333333326,
        0.1999999999999767,
        -0.1428571428538814,
        0.11111111088185616,
        -0.09090908144795296,
        0.0769228276435497,
        -0.06666226836614139,
        0.05877022527872025,
        -0.05218408795983628,
        0.04503566183396885,
        -0.033474820313516895,
        0.015195495573101419,
    ];
    // 2^-64.7
    const ERF: &'static [f64] = &[
        0.1283791670955126,
        -0.37612638903183754,
        0.11283791670955039,
        -0.02686617064511015,
        0.005223977625176321,
        -0.0008548327003470858,
        0.0001205533201588718,
        -1.4925618990949104e-5,
        1.6461414915601686e-6,
        -1.635508677162543e-7,
        1.4694603603354475e-8,
        -1.1518642237223845e-9,
        6.223926755504191e-11,
    ];
    // 2^-59.5
    const ERFC: &'static [f64] = &[
        1.2329951186255526,
        -0.13962111684056253,
        0.015379652102619622,
        0.06809705425469532,
        -0.10103906603629773,
        0.09373283499825626,
        -0.06633036581236014,
        0.037167515538977534,
        -0.016197734056207603,
        0.0050319699648841976,
        -0.0007577732992444332,
        -0.00019925662552237256,
        0.00015062172348269067,
        -2.439944225094224e-5,
        -1.1222183037848186e-5,
        5.710196812386336e-6,
        2.941618460570839e-7,
        -8.259665114194594e-7,
        7.410531056923857e-8,
        1.1033293372279874e-7,
        -1.7469657631871683e-8,
        -1.4070564088047001e-8,
        1.6772773456762364e-9,
        1.198135355645079e-9,
    ];
}
