// What every module of the page is written with: templates, hooks, and values that components follow.
import { h, render } from "./vendor/preact.js";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

// A value that lives outside of components. `use` in a component draws it again when the value changes.
export function store(value) {
  const followers = new Set();
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const follow of [...followers]) follow();
    },
    use() {
      const [, draw] = useState(0);
      useEffect(() => {
        const drawn = value;
        const follow = () => draw((count) => count + 1);
        followers.add(follow);
        if (drawn !== value) follow();
        return () => followers.delete(follow);
      }, []);
      return value;
    },
  };
}
