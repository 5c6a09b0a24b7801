// Writes figures as text: aligned, with units, and the same everywhere.
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FINE = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit" });
const two = (value) => String(Math.floor(value)).padStart(2, "0");

export function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e15)) return value.toExponential(2);
  return (size >= 1000 ? WHOLE : FINE).format(value);
}

export const percent = (value, digits = 1) => (value == null ? "–" : `${(100 * value).toFixed(digits)} %`);
export const day = (unix) => (unix ? DAY.format(new Date(unix * 1000)) : "–");
export const isBytes = (unit) => /^(bytes|B)(\/s)?$/.test(unit ?? "");

function bytes(value, per) {
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, Math.abs(value))) / 10));
  const scaled = value / 1024 ** power;
  return `${scaled.toFixed(power && scaled < 100 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}${per}`;
}

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${two((whole % 86400) / 3600)} h`;
}

/** Seconds since the run began, as on a clock; `step` is how far apart the marks of the axis are. */
export function clock(seconds, step = 1) {
  const digits = step >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(step) - 1e-9));
  if (digits && seconds < 60) return `${seconds.toFixed(digits)} s`;
  const whole = digits ? Math.floor(seconds) : Math.round(seconds);
  const rest = digits ? (seconds - whole).toFixed(digits).slice(1) : "";
  const minutes = Math.floor((whole % 3600) / 60);
  return `${whole >= 3600 ? `${Math.floor(whole / 3600)}:${two(minutes)}` : minutes}:${two(whole % 60)}${rest}`;
}

export function quantity(value, unit) {
  if (value == null) return "–";
  if (unit === "share") return percent(value);
  if (unit === "%") return `${value.toFixed(1)} %`;
  if (unit === "s") return duration(value);
  if (isBytes(unit)) return bytes(value, unit.replace(/^(bytes|B)/, ""));
  return unit ? `${number(value)} ${unit}` : number(value);
}

/** The same where the unit stands above: only what a figure cannot be read without. */
export const figure = (value, unit) => quantity(value, isBytes(unit) || ["share", "%", "s"].includes(unit) ? unit : "");

/** A place on the x axis of a chart. */
export const place = (value, name) => (value == null ? "–" : name === "time" ? clock(value) : `${name} ${number(value)}`);
