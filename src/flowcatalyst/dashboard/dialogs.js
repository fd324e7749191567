// Before anything is changed, a dialog says what will happen; after it, the router's own sentence what did.
import { act, asSentence } from "./api.js";
import { html, store, useEffect, useRef, useState } from "./core.js";
import { complain, tell } from "./ui.js";

const asked = store(null);

// spec: { title, text, button, danger, fields: [{ name, label, value, type, hint, options }], run: async (values) => sentence, then }
export const confirm = (spec) => asked.set(spec);

// What was asked on one view is no question on another.
export const dismiss = () => asked.set(null);

// The usual action: one request, and a sentence about what came of it.
export const confirmAct = ({ method = "POST", path, body, said, ...spec }) =>
  confirm({
    ...spec,
    run: async (values) => {
      const result = await act(method, path, typeof body === "function" ? body(values) : body);
      return result?.text ? asSentence(result.text) : said(result, values);
    },
  });

function Field({ field, value, onChange }) {
  if (field.options) {
    return html`<fieldset><legend>${field.label}</legend>${field.options.map(
      ([choice, label]) => html`<label class="choice" key=${choice}><input type="radio" name=${field.name} value=${choice} checked=${value === choice} onChange=${() => onChange(choice)} /> ${label}</label>`,
    )}</fieldset>`;
  }
  return html`<label><span>${field.label}</span>
    <input name=${field.name} type=${field.type ?? "text"} min=${field.min} value=${value} required=${field.required ?? false} onInput=${(event) => onChange(event.target.value)} autocomplete="off" spellcheck=${false} />
    ${field.hint && html`<small>${field.hint}</small>`}</label>`;
}

function Question({ spec }) {
  const dialog = useRef(null);
  const [values, setValues] = useState(Object.fromEntries((spec.fields ?? []).map((one) => [one.name, one.value ?? ""])));
  const [state, setState] = useState({ busy: false, wrong: "" });
  useEffect(() => dialog.current.showModal(), []);
  const run = async (event) => {
    event.preventDefault();
    setState({ busy: true, wrong: "" });
    try {
      const sentence = await spec.run(values);
      const place = location.hash;
      if (dialog.current) {
        dialog.current.close();
        spec.then?.();
      }
      tell(sentence, place !== location.hash);
    } catch (error) {
      if (dialog.current) setState({ busy: false, wrong: error.message });
      else complain(error.message);
    }
  };
  return html`<dialog ref=${dialog} aria-labelledby="question" onClose=${() => asked.set(null)}>
    <form onSubmit=${run}>
      <h2 id="question">${spec.title}</h2>
      ${spec.text && html`<p>${spec.text}</p>`}
      ${(spec.fields ?? []).map((one) => html`<${Field} key=${one.name} field=${one} value=${values[one.name]} onChange=${(value) => setValues((before) => ({ ...before, [one.name]: value }))} />`)}
      <p role="alert" class=${state.wrong ? "trouble" : "unseen"}>${state.wrong}</p>
      <div class="buttons">
        <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
        <button type="submit" class=${spec.danger ? "danger" : "primary"} disabled=${state.busy}>${state.busy ? "Working …" : spec.button}</button>
      </div>
    </form>
  </dialog>`;
}

let number = 0;
const numbers = new WeakMap();

export function Dialogs() {
  const spec = asked.use();
  if (!spec) return null;
  if (!numbers.has(spec)) numbers.set(spec, ++number);
  return html`<${Question} key=${numbers.get(spec)} spec=${spec} />`;
}
